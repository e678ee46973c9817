"""Every error foldline raises on purpose.

FoldlineError                     exit 3   something could not be finished; what was found is kept
├── BudgetExhausted               exit 3   the next batch would cross the budget; nothing was asked
├── TargetError                   exit 3   the target raised, or could not be reached
│   └── BadAnswer                 exit 3   the target answered NaN, the wrong shape or the wrong number of rows
├── Stopped                       exit 3   time ran out
└── BadInput (a ValueError)       exit 2   the caller's mistake, in a full sentence
    ├── BadQuery                  exit 2   wrong width, NaN, an empty batch, outside the declared box
    ├── BadFile                   exit 2   weights, data or results that cannot be read
    ├── BadSpec                   exit 2   an audit file or target string that says something impossible
    ├── Missing                   exit 2   a data set or an optional package that is not here
    ├── Refused                   exit 2   a network or an answer whose algebra this method does not have
    └── NotAuthorised             exit 2   an HTTP target without --i-am-authorised
"""

from __future__ import annotations


class FoldlineError(Exception):
    exit_code = 3


class BudgetExhausted(FoldlineError):
    def __init__(self, wanted: int, used: int, budget: int) -> None:
        self.wanted, self.used, self.budget = wanted, used, budget
        super().__init__(f"The next batch asks {wanted} rows, but {used} of the budget of {budget} are used; "
                         f"nothing was asked.")

    def __reduce__(self) -> tuple[type, tuple[int, int, int]]:
        return type(self), (self.wanted, self.used, self.budget)


class TargetError(FoldlineError):
    pass


class BadAnswer(TargetError):
    pass


class Stopped(FoldlineError):
    pass


class BadInput(FoldlineError, ValueError):
    exit_code = 2


class BadQuery(BadInput):
    pass


class BadFile(BadInput):
    pass


class BadSpec(BadInput):
    pass


class Missing(BadInput):
    pass


class Refused(BadInput):
    pass


class NotAuthorised(BadInput):
    pass
