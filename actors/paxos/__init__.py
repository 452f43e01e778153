"""A replicated log: Multi-Paxos in the roles of "Paxos Made Moderately Complex" (PMMC).

Source: Robbert van Renesse and Deniz Altinbuken, "Paxos Made Moderately Complex", ACM
Computing Surveys 47(3), 2015; the service is shaped like the one in the Warlock thesis.
"""
