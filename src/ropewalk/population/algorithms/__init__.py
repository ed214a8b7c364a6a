"""Population algorithms, one file each; the conformance suite tests every listed algorithm."""

ALGORITHMS = {
    "openai_es": "ropewalk.population.algorithms.openai_es:OpenAIES",
    "snes": "ropewalk.population.algorithms.snes:SNES",
    "cma_es": "ropewalk.population.algorithms.cma_es:CMAES",
    "genetic": "ropewalk.population.algorithms.genetic:Genetic",
    "novelty": "ropewalk.population.algorithms.novelty:NoveltyES",
    "pbt": "ropewalk.population.algorithms.pbt:PBT",
    "pbt_replay": "ropewalk.population.algorithms.pbt_replay:PBTReplay",
    "map_elites": "ropewalk.population.algorithms.map_elites:MAPElites",
    "poet": "ropewalk.population.algorithms.poet:POET",
}
"""The module of each algorithm, which is imported at first use."""
