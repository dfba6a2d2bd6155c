import torch

# Several test processes share the cores; threads that wait for each other would cost more.
torch.set_num_threads(1)
