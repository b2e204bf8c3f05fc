"""What algorithms say about themselves: complete, registered once, and inherited with care."""

import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import offbeat.algorithms
from offbeat.algorithms import POLICIES, FedBuff
from offbeat.algorithms.about import About, SearchSpace, about_of, smoke_tables
from offbeat.algorithms.sizes import governed
from offbeat.core.errors import InvalidInput
from offbeat.core.policy import Policy

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", POLICIES)
def test_every_registered_algorithm_describes_itself_completely(name: str) -> None:
    about = about_of(POLICIES[name])
    assert about.name == name and about.family and about.paper and about.provenance
    assert governed(POLICIES[name]) or about.trains_all_devices
    assert about.in_training is None or about.in_training in POLICIES[name].model_fields
    assert about.search.keys() <= POLICIES[name].model_fields.keys()


def test_no_algorithm_in_the_folder_is_forgotten() -> None:
    modules = [import_module(each.name) for each in walk_packages(offbeat.algorithms.__path__, "offbeat.algorithms.")]
    written = {
        thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Policy) and about_of(thing).name
    }
    assert written == set(POLICIES.values())


def test_a_subclass_inherits_the_search_space_but_not_the_paper() -> None:
    class Mine(FedBuff):
        pass

    about = about_of(Mine())
    assert (about.name, about.paper, about.provenance) == ("", "", None)
    assert (about.in_training, about.search) == ("concurrency", about_of(FedBuff).search)


def test_an_about_that_is_none_is_refused() -> None:
    class Wrong(Policy):
        about = "wrong"

    with pytest.raises(InvalidInput, match=r"Wrong\.about is a str: must be an offbeat\.policy\.About"):
        about_of(Wrong)


def test_the_smoke_experiment_has_the_tables_that_algorithms_name() -> None:
    class Plain(Policy):
        about = About(name="plain")

    class Own(Policy):
        about = About(name="own", search=SearchSpace(), smoke={"local": {"epochs": 1}})

    assert smoke_tables([Plain, Own]) == {"plain": {}, "own": {"local": {"epochs": 1}}}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "pyproject.toml"])
def test_the_number_of_algorithms_that_a_page_names_is_right(page: str) -> None:
    named = re.findall(r"(\d+) (?:\w+ )?algorithms", (ROOT / page).read_text())
    assert set(named) <= {str(len(POLICIES))}
    assert named or page != "README.md"
