"""Measurements that compare, in one run, what a machine of this noise can tell apart."""
