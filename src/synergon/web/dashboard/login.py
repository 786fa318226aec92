"""The login of the dashboard: a name and a password, or a token, from the credentials of the server."""

from __future__ import annotations

from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from synergon.web.access import Role, User, address_of
from synergon.web.credentials import Credentials
from synergon.web.dashboard.pages import Page
from synergon.web.dashboard.sessions import Sessions
from synergon.web.inputs import check_headers, read_bytes
from synergon.web.problems import Problem

FORM: str = "application/x-www-form-urlencoded"
LONGEST_FORM: int = 8 * 1024


class Login:
    """Answers the form of the login. Failures are slowed down as those of the API are."""

    def __init__(self, credentials: Credentials, sessions: Sessions) -> None:
        self._credentials = credentials
        self._sessions = sessions

    def redirect(self, request: Request, root: str) -> Response:
        """Redirect to the login, which leads back to the requested page."""
        wanted = request.scope["path"]
        if request.url.query:
            wanted += f"?{request.url.query}"
        return RedirectResponse(f"{root}/login?next={quote(wanted, safe='')}", 303)

    async def answer(self, request: Request, root: str) -> Page | Response:
        """Answer with the form, or, after a successful login, with a redirect to the wanted page. Raises Problem if the
        request is invalid."""
        check_headers(request)
        if request.method != "POST":
            return _form(request.query_params.get("next", ""))
        given = await _read_form(request)
        name, password, wanted = (given.get(field, "") for field in ("name", "password", "next"))
        try:
            user = await self._find(name.strip(), password, address_of(request))
        except Problem as problem:  # too many failures
            return _form(wanted, name, problem.detail, problem.status)
        if user is None or not user.role.allows(Role.READ):
            return _form(wanted, name, "This name and password do not fit.", 401)
        response = RedirectResponse(_inside(wanted, root), 303)
        self._sessions.open(user, request, response)
        return response

    async def _find(self, name: str, password: str, address: str) -> User | None:
        if name:
            return await self._credentials.find_by_password(name, password, address)
        return self._credentials.find_by_token(password.strip(), address)


def _form(wanted: str, name: str = "", error: str | None = None, status: int = 200) -> Page:
    return Page("login.html", "Sign in", {"next": wanted, "name": name, "error": error, "status": status})


async def _read_form(request: Request) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Problem(415, f"the login is sent with Content-Type: {FORM}")
    body = await read_bytes(request, LONGEST_FORM)
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=10)
    return {name: values[-1] for name, values in fields.items()}


def _inside(wanted: str, root: str) -> str:
    """The wanted page if it belongs to the dashboard; otherwise its first page, so that a login never leads to another
    site."""
    is_inside = wanted.startswith(f"{root}/") and not wanted.startswith("//") and "\\" not in wanted
    return wanted if is_inside and wanted.isprintable() else f"{root}/"
