"""A replicated log: Multi-Paxos in the roles of "Paxos Made Moderately Complex" (PMMC).

Source: Robbert van Renesse and Deniz Altinbuken, "Paxos Made Moderately Complex", ACM
Computing Surveys 47(3), 2015; the shape of the service is that of the Warlock thesis.
"""
