"""Measurements that compare alternatives in one run, because machines are noisy."""
