"""The playbook: a proposer that writes kernels from templates, without a language model.

Input: a problem with its traced graph, the device, and the verdicts on earlier kernels. Output: ideas and kernel files.
Each kernel file comes with its recipe.

``patterns`` recognizes problems and writes their kernels from the Jinja templates in ``templates``. ``transformations``
ranks the next transformations to try, and samples their settings. ``analysis`` turns a traced graph into an ``ir``
program. ``codegen`` writes expressions in C++ and CUDA C++. Imports go from ``patterns`` down to ``base``, never back.
"""

from engine.proposers.playbook.playbook import Playbook

__all__ = ["Playbook"]
