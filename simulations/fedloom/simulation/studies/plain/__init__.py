"""Plain numpy loops of the papers' algorithms, beside which the simulations are tabled.

They import numpy alone and compute in float64. They draw their own cohorts and batches, except
`fedprox2020`, which is given the cohorts, the stragglers and the batches.

    softmax         logistic regression, its loss and its gradient
    local_sgd       a client's passes over its examples
    mcmahan2017     FedAvg of the 2NN
    fedprox2020     FedAvg and FedProx with stragglers
    scaffold2020    SCAFFOLD, FedAvg, FedProx and SGD; quadratics
    fedopt2021      server optimizers
    fedbuff2022     buffers on a virtual clock
"""
