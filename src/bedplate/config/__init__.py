"""Configuration: the frozen tree (`tree`) and its loader (`load`)."""

from bedplate.config.load import load
from bedplate.config.tree import Config

__all__ = ["Config", "load"]
