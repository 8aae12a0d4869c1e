"""Calls a function and prints what it returns: python -m benchmarks.call MODULE FUNCTION ARGUMENTS.

ARGUMENTS and what is printed are JSON. Nothing else is imported, so that it runs in every peer's
environment.
"""

import importlib
import json
import sys

if __name__ == '__main__':
  module, function, arguments = sys.argv[1:]
  result = getattr(importlib.import_module(module), function)(*json.loads(arguments))
  if result is not None:
    print(json.dumps(result))
