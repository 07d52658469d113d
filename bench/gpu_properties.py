"""Prints the name of the first GPU and its bytes of memory, as a line of JSON."""

import json

import torch

of_first = torch.cuda.get_device_properties(0)
print(json.dumps([of_first.name, of_first.total_memory]))
