"""One file a bench; `bench/harness/registry.py` names them."""
