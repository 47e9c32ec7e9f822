"""The model in PyTorch, as fast as we could make PyTorch train it with PyTorch's own operators.

No kernels of our own: what is compared is the framework. Needs torch, NumPy and Pillow, nothing of convtrain.

- ``network``     the model on pixel-major features, with the library's depthwise convolution
- ``toeplitz``    the same on feature-major tiles, the depthwise convolution as matrix products
- ``loss``        the four loss terms
- ``optimisers``  Adam and Muon, batched, on tensors that a CUDA graph can replay
- ``schedule``    learning rate, plateau rule and loss scale, on the device
- ``trainer``     one step; eager, compiled, or captured
- ``worker``      one measurement: its own process, JSON out
"""
