"""What a user hands in: a file or a module, its inputs, and how to re-create both in another process.

``problem.py`` is the record and its API, ``source.py`` loads a KernelBench-format file, ``module.py`` carries an
``nn.Module`` as an exported program, ``scale.py`` makes a file's inputs small enough for a machine without a GPU.
"""

from mtmc.problem.problem import Problem, load_problem

__all__ = ["Problem", "load_problem"]
