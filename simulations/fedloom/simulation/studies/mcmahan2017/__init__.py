"""McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data".

https://arxiv.org/abs/1602.05629. Tables 1 and 2: rounds of communication to a target on MNIST.
"""
