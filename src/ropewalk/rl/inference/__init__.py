"""Central inference: actors ask a server for actions, and hold no network.

Espeholt et al.: SEED RL, 2020 (https://arxiv.org/abs/1910.06591). Here a call brings the rows of a whole group of
environments, and the rows of all calls that come together are joined.
"""
