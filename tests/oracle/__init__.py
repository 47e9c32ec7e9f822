"""An independent float64 implementation of the model, for the tests to judge the shaders by.

Nothing here shares code with ``slang/``, ``cook/`` or ``convtrain/``: it is written from the specification alone, in
plain NumPy, with gradients by automatic differentiation (HIPS autograd). It doubles as the model's executable
documentation; read it in this order:

1. ``layout``      what the weights are and where they stand in WBuf
2. ``model``       coordinates, kernel network, layers, head: from weights to picture
3. ``loss``        the four loss terms, SSIM among them
4. ``gradient``    the loss of a weight vector, and its gradient
5. ``optimisers``  Adam and Muon
6. ``training``    schedule, whole epochs, weight average
"""
