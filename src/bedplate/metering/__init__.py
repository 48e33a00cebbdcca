"""Metering: usage rows, prices, bills and their reconciliation, all folds over the journal."""
