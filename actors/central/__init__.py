"""One lock server and sequence numbers, over a network that loses, repeats and reorders.

Source: "Distributed mutual exclusion", a design document of the CSE 452 course,
University of Washington.
"""
