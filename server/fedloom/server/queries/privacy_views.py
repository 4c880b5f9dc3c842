"""The API's requests and answers about the privacy ledger; see `fedloom.server.queries.views`.

An epsilon is null where no bound is known.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

NO_CONTROLS = r"^[^\x00-\x1f\x7f-\x9f]*$"
LabelText = Annotated[
    str,
    Field(
        max_length=250, pattern=NO_CONTROLS, description="name or name=value; empty: all clients"
    ),
]
Delta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class PrivacyBudgetView(BaseModel):
    """A budget: the most that each client of a label may spend over all runs."""

    label: Annotated[str, Field(description="that operators set; empty: all clients")]
    epsilon: float
    delta: float
    allow_public: Annotated[bool, Field(description="whether runs without [privacy] may draw them")]
    set_at: float
    set_by: str


class PopulationView(BaseModel):
    """What the clients of a label have spent over all private runs, composed."""

    label: Annotated[str, Field(description="empty: all clients")]
    budget: Annotated[PrivacyBudgetView | None, Field(description="null: none is set")]
    delta: Annotated[float, Field(description="at which the epsilons are")]
    clients: Annotated[int, Field(description="that it covers, also on hold or revoked")]
    spent: Annotated[float | None, Field(description="by the client that spent most")]
    reserved: Annotated[
        float | None, Field(description="the same with all that active runs still plan")
    ]
    left: Annotated[
        float | None,
        Field(description="budget minus reserved; null without a budget. Epsilons do not add up"),
    ]
    worst: Annotated[str | None, Field(description="a client that spent most")]
    over: Annotated[int, Field(description="clients whose reserved epsilon exceeds the budget")]
    public: Annotated[int, Field(description="clients that were in runs without [privacy], too")]
    relation: Annotated[str, Field(description="neighbouring relation of `spent`")]


class PrivateRunView(BaseModel):
    """A run in the privacy ledger."""

    run: str
    state: str
    private: Annotated[bool, Field(description="whether it has [privacy]")]
    mechanism: str
    clients: Annotated[int, Field(description="that its rounds could draw so far")]
    rounds: Annotated[int, Field(description="released so far")]
    planned: Annotated[int, Field(description="released once it has ended")]
    epsilon: Annotated[float | None, Field(description="of its released rounds alone, at `delta`")]
    barred: Annotated[int, Field(description="clients that it may not draw: a budget has no room")]


class PrivacyLedger(BaseModel):
    """The privacy ledger."""

    populations: Annotated[list[PopulationView], Field(description="all clients, then labels")]
    runs: Annotated[list[PrivateRunView], Field(description="newest first")]


class SpenderView(BaseModel):
    """What a client has spent over all private runs, composed."""

    client: str
    delta: float
    spent: float | None
    reserved: float | None
    runs: Annotated[int, Field(description="private runs that could draw it")]
    public: Annotated[int, Field(description="runs without [privacy] that it was in")]
    relation: Annotated[str, Field(description="neighbouring relation of `spent`")]


class SpenderList(BaseModel):
    """Clients by name."""

    clients: list[SpenderView]
    total: int
    more: Annotated[str | None, Field(description="`after` of the next page; null at the end")]


class SpenderDetail(SpenderView):
    """What a client has spent, with its runs."""

    in_runs: Annotated[list[PrivateRunView], Field(description="that could draw it, newest first")]


class NewPrivacyBudget(BaseModel):
    """A budget to set."""

    model_config = ConfigDict(extra="forbid")

    label: LabelText = ""
    epsilon: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    delta: Delta
    allow_public: bool = False


class OldPrivacyBudget(BaseModel):
    """A budget to remove."""

    model_config = ConfigDict(extra="forbid")

    label: LabelText = ""


class PrivacyBudgetActed(BaseModel):
    """What an action on a budget did, or would do."""

    budget: Annotated[PrivacyBudgetView | None, Field(description="now in force; null: none")]
    changed: Annotated[bool, Field(description="false in a preview, or if nothing changed")]
    consequence: str
