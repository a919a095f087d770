"""Training: the shared model whose outputs the devices calibrate. Needs the extra ``conformesh[torch]``.

PyTorch is imported when a function first needs it, so these modules can be imported and documented without it.
"""
