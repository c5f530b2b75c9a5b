from __future__ import annotations

from collections.abc import Callable

import pytest

from evenfed.data.files import VARIABLE, data_folders


@pytest.fixture(scope="session")
def needs() -> Callable[..., None]:
    """Skip the test, with the reason, where one of the named data files is not here."""

    def check(*names: str) -> None:
        folders = data_folders()
        for name in names:
            if not any((folder / name).is_file() for folder in folders):
                looked = ", ".join(str(folder) for folder in folders)
                pytest.skip(f"data file '{name}' is not in {looked}; set {VARIABLE}")

    return check
