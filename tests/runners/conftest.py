from __future__ import annotations

import pytest

from tests.runners.command import Done, Tracon


@pytest.fixture
def tracon(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tracon:
    from runners.cli import main  # takes a second, which most tests here do not need

    def call(*words: str) -> Done:
        monkeypatch.setattr("sys.argv", ["tracon", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return Done(ended.value.code or 0, shown.out, shown.err)

    return call
