"""Data sets for experiments: images to train on, synthetic model outputs, and ways to spread rows over devices.

`datasets` lists the data sets with a name and loads them; `cifar`, `medmnist` and `pickles` read their formats. Files
of scores and of model outputs are read by `conformesh.files`.
"""
