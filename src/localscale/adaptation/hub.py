"""Upload adapted models to the Hugging Face Hub, and download them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from localscale.errors import HubError
from localscale.extras import require

__all__ = ["download", "upload"]


def download(repo_id: str, names: tuple[str, ...], *, revision: str | None = None, token: str | None = None) -> Path:
    """Download the files called ``names`` from a model's repository into the cache; return their folder."""
    hub = require("huggingface_hub", "hub")
    with _clear_errors(repo_id, "loaded"):
        return Path(hub.snapshot_download(repo_id, revision=revision, token=token, allow_patterns=list(names)))


def upload(folder: Path, repo_id: str, *, private: bool | None, token: str | None, message: str) -> str:
    """Upload the files in ``folder`` to a model's repository, which is created if needed; return its address."""
    hub = require("huggingface_hub", "hub")
    with _clear_errors(repo_id, "saved"):
        api = hub.HfApi(token=token)
        address = str(api.create_repo(repo_id, private=private, exist_ok=True))
        api.upload_folder(repo_id=repo_id, folder_path=str(folder), commit_message=message)
    return address


@contextlib.contextmanager
def _clear_errors(repo_id: str, what: str) -> Iterator[None]:
    """Turn the errors of ``huggingface_hub`` into a ``HubError`` of one sentence."""
    errors = require("huggingface_hub.errors", "hub")
    transport = getattr(errors, "HTTPError", OSError)  # of the HTTP library, which differs between versions
    log_in = "log in with `hf auth login`, or pass token=…"
    try:
        yield
    except errors.GatedRepoError:
        raise HubError(f"{repo_id} needs its owner's permission; ask for it on its page, then {log_in}") from None
    except errors.RevisionNotFoundError:
        raise HubError(f"{repo_id} has no such revision; leave out revision=… for the newest") from None
    except errors.LocalEntryNotFoundError:
        raise HubError(
            f"{repo_id} cannot be {what}: the Hugging Face Hub does not answer, and no copy is in the cache; check the "
            "connection"
        ) from None
    except errors.HFValidationError:
        raise HubError(f"{repo_id!r} is not the id of a model; expected user/name") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if what == "saved" and status in (401, 403):
            raise HubError(f"you may not write to {repo_id}; {log_in}") from None
        if status == 404:
            raise HubError(f"there is no model {repo_id} on the Hugging Face Hub; check the spelling") from None
        if status in (401, 403):
            raise HubError(f"{repo_id} does not exist or is private; check the spelling, or {log_in}") from None
        reason = str(error).strip().partition("\n")[0]
        raise HubError(f"{repo_id} cannot be {what}: the Hugging Face Hub answered {reason}; try again") from None
    except (OSError, ValueError, transport) as error:
        reason = str(error).strip().partition("\n")[0]
        raise HubError(f"{repo_id} cannot be {what} ({type(error).__name__}: {reason}); try again") from error
