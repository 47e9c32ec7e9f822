"""Compares convtrain with PyTorch on the machine at hand: `python -m bench`, or `make bench`.

Both train the same model from the same weights on the same picture with the same loss, optimisers and schedule.
Every measurement runs in a process of its own: one that fails becomes a row that says why.

- ``problem``    what is trained: picture, constants, first weights
- ``contest``    which measurements are made, in which order, within which time
- ``pytorch``    the model in PyTorch, several formulations and precisions; needs torch and numpy only
- ``vulkan``     convtrain, driven through its command line
- ``ceilings``   what the machine can do at best: copy bandwidth, matrix rate
- ``report``     Markdown, JSON and plots in ``bench/results``
"""
