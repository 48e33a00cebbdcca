"""One suite for every engine: what `engines/base.py` promises holds, whatever runs behind it."""
