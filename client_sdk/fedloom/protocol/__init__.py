"""What client and server share: messages, the tensor container, checks, identities, errors.

    >>> from fedloom.protocol.errors import Code, Refusal
    >>> refusal = Refusal(Code.WRONG_SHAPE, "Expected shape (2, 3) for w, got (3, 2).")
    >>> refusal.code.status, refusal.code.reaction.value, refusal.code.blames_update
    ('INVALID_ARGUMENT', 'drop it', True)
    >>> from fedloom.protocol.codecs import codec
    >>> codec("top_k", {"fraction": 0.01})
    TopK(fraction=0.01)

tensors    tensors as bytes: the safetensors container, checks of values, model differences
updates    an update on the wire: header, body, compression, exact sums
codecs     quantised, sparse, low-rank and lossless forms of tensors
masking    secure aggregation: keys, shares, masks, the device's side of a session
trust      identities, signatures, tokens, key files
transport  gRPC methods, statuses and channel settings
errors     the tree of errors, and the table of refusal codes
v1         the Protocol Buffers messages and their generated code
"""
