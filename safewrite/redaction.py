r"""Secrets out of texts: exceptions, commands, headers and URLs, before they are recorded, logged or told.

Arguments and values are redacted by declaration or by type; this is for texts, where a secret is known only by its
looks or by the name beside it.  Looks are never complete: a password that stands alone stays.  Where in doubt, a
text loses a word too much.

Every pattern begins at a literal, repeats within bounds or never goes back, and leaves no two ways to read the same
characters, so that the work stays in proportion to the text, whatever the text is.
"""

from __future__ import annotations

import re

MARK = "[redacted]"
MAX_CHARS = 100_000
"""Characters of a text that are kept; what comes after is left out, and the text says so."""


def redact_text(text: str) -> str:
    """Return `text` with `[redacted]` in place of what looks like a secret; a redacted text may come again.

    Of texts beyond `MAX_CHARS` only the beginning is kept, up to the end of a word.
    """
    left_out = ""
    if len(text) > MAX_CHARS:
        head = text[:MAX_CHARS]
        # Half a token might no longer look like one: the cut goes back to the last blank.
        head = head[: max(head.rfind(blank) for blank in " \t\r\n") + 1]
        left_out = f"[{len(text) - len(head)} more characters left out]"
        text = head
    for pattern in _PATTERNS:
        text = pattern.sub(_hide, text)
    return text + left_out


def _hide(match: re.Match[str]) -> str:
    """Keep what stands before and after the secret, and the quotes around it."""
    groups = match.groupdict("")
    before, after = groups.get("before", ""), groups.get("after", "")
    opening = _OPENING.match(groups.get("secret", ""))
    if opening is None:
        return f"{before}{MARK}{after}"
    quote = opening["quote"]
    is_closed = len(groups["secret"]) > len(opening[0]) and groups["secret"].endswith(quote)
    return f"{before}{opening[0]}{MARK}{quote if is_closed else ''}"


_OPENING = re.compile(r"b?(?P<quote>\\*[\"'])")

# The beginning of a word, or what follows an escaped line end.
_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt]))"
# The end of a name, whatever it begins with: `password`, `db_password`, `clientSecret`, but not `tokenizer`.
_NAME = (
    r"(?:passw(?:or)?d|passphrase|passcode|pwd(?![\"']?[:=][ ]?/)|secret|token|bearer|credentials?"
    r"|(?:api|access|account|auth|encryption|master|private|secret|shared|signing|subscription)[_-]?key)"
    r"[0-9]{0,2}"
)
_QUOTED = (
    r"b?\"(?:[^\"\\\r\n]|\\[^\r\n])*+\"?"
    r"|b?'(?:[^'\\\r\n]|\\[^\r\n])*+'?"
    # Inside a text that is itself quoted, the quotes are escaped; more backslashes belong to the value.
    r"|b?(?P<escaped>\\{1,16}[\"'])(?:[^\\\r\n]|\\++(?![\"'])|(?!(?P=escaped))\\++[\"'])*+(?P=escaped)?"
)
_BRACKETED = r"\{[^{}\r\n]*+\}?|\[(?!redacted\])[^\[\]\r\n]*+\]?|\([^()\r\n]*+\)?"
# Up to a blank, a quote or the next of several `name=value`; not the punctuation after it, nor what is no value.
_BARE = (
    r"(?!(?:none|null|true|false|str|string|bytes|int|secretstr)(?![^\s,;)\]}|=])|\[redacted\])"
    r"(?:[^\s\"'&;<>\\]|&(?![\w.%\[\]-]{1,64}=)|;(?=[^\s=])(?![\w .-]{1,40}=)|\\(?![nrt\"'\\]))*"
    r"[^\s\"'&;<>\\,.:)\]}]"
)
_VALUE = rf"(?P<secret>{_QUOTED}|{_BRACKETED}|{_BARE})"

# Private keys, also if the end is missing.
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----|\Z)"
)
# `https://user:password@host`: up to the last @ before the path.
_USERINFO = r"(?P<before>://)(?:[^\s/?#\"'<>\\@]*+@)*[^\s/?#\"'<>\\@]*(?P<after>@)"
# Authorization and cookies: a quoted value, a known scheme and its token, or all up to the end of the line.
_HEADER = (
    rf"(?P<before>(?P<opened>[\"'])?{_START}(?:(?:proxy-)?authorization|(?:set-)?cookie)"
    r"(?:\\{0,16}[\"']?[ \t]{0,4}[:=]|\\{0,16}[\"'],)[ \t]{0,4}"
    r"(?P<scheme>(?:bearer|basic|token|apikey|negotiate|ntlm|dpop|bot)[ \t]{1,4})?)"
    rf"(?P<secret>{_QUOTED}|(?(scheme)[^\s\"',;\\]++|(?(opened)(?:(?!(?P=opened))[^\r\n])++|[^\r\n]++)))"
)
# Schemes without their header; "Bearer token is missing" and "Basic usage" are prose.
_BEARER = (
    rf"(?P<before>{_START}(?:bearer|dpop)[ \t]{{1,4}})"
    r"(?!(?:tokens?|auth|authentication|authorization|credentials?|schemes?|realm|headers?|format|errors?|is|was|not"
    r"|must|required|missing|invalid|expired|and|or|of|for|in|to|the|with)(?![\w.~+/-]))"
    r"[\w.~+/=|:%-]{4,}+"
)
_BASIC = rf"(?P<before>{_START}[Bb]asic[ \t]{{1,4}})(?=[A-Za-z0-9+/_-][a-z_-]*+[A-Z0-9+/=])[\w+/=-]{{4,}}+"
_HEX_TOKEN = rf"(?P<before>{_START}[Tt]oken[ \t]{{1,4}})[0-9a-f]{{20,}}+\b"
# Tokens that tell what they are.
_JWT = r"(?:(?<![\w-])|(?<=\\[nrt]))eyJ[\w-]{4,}+(?:\.[\w-]*+){1,4}"
_KNOWN = (
    rf"{_START}(?:sk-[\w-]{{3,}}+|(?:sk|rk)_(?:(?:live|test|prod)_\w{{3,}}+|(?=[a-zA-Z_]*+[0-9])\w{{10,}}+)"
    r"|gh[oprsu]_\w++|github_pat_\w++|glpat-[\w-]{3,}+|xox[a-z]-[\w-]{3,}+|xapp-[\w-]{3,}+"
    r"|A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{8,}+|AIza[\w-]{6,}+|ya29\.[\w.-]{6,}+|whsec_[\w+/=]{3,}+|shpat_\w{3,}+"
    r"|(?:hf|npm|dop_v1|lin_api)_\w{10,}+|pypi-[\w-]{16,}+|sq0[a-z]{3}-[\w-]{10,}+"
    r"|SG\.[\w-]{10,}+\.[\w-]{10,}+)"
)
_SIGNATURE = (
    r"(?P<before>(?:x-(?:amz|goog)-(?:signature|credential|security-token)|(?<![a-z_])signature|[?&]sig)=)"
    r"[\w%+/=-]{8,}+"
)
# `password: x`, `"clientSecret": "x"`, `api_key=x`, `token: str = "x"`.
_NAMED = (
    rf"(?P<before>{_NAME}\\{{0,16}}[\"']?\]?[ \t]{{0,4}}"
    r"(?>:[ \t]?(?:str|bytes|SecretStr|SecretBytes)(?:[ ]\|[ ]None)?[ \t]?=|=>|:=|==?|:)[ \t]{0,4}+)"
    rf"{_VALUE}"
)
_ELEMENT = rf"(?P<before>{_NAME}>)[^<>\r\n]++(?=<)"
# `--password x`, also as a list: `'--password', 'x'`.
_FLAG = (
    rf"(?P<before>(?<![\w-])--?[\w-]{{0,40}}?{_NAME}(?:[ \t]{{1,4}}|\\{{0,16}}[\"'],[ \t]{{0,4}}))(?!-)"
    rf"{_VALUE}"
)
_USER_FLAG = r"(?P<before>(?<![\w-])(?:-u|--(?:proxy-)?user)(?:[ \t]{1,4}|=)[\"']?[^\s:\"']{1,64}:)[^\s\"']++"
# `('x-api-key', 'x')`.
_PAIR = (
    r"(?P<before>(?:x-[\w-]{0,30}?(?:key|token|secret)|api-key)[\"'],[ \t]{0,4})"
    rf"(?P<secret>{_QUOTED})"
)

_PATTERNS = (
    re.compile(_PRIVATE_KEY, re.DOTALL),
    re.compile(_USERINFO),
    *(re.compile(pattern, re.IGNORECASE) for pattern in (_HEADER, _BEARER)),
    *(re.compile(pattern, re.ASCII) for pattern in (_BASIC, _HEX_TOKEN, _JWT, _KNOWN)),
    *(re.compile(pattern, re.IGNORECASE) for pattern in (_SIGNATURE, _NAMED, _ELEMENT, _FLAG)),
    re.compile(_USER_FLAG),
    re.compile(_PAIR, re.IGNORECASE),
)
