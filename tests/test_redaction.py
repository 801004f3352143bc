"""Secrets leave texts before anything is recorded."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safewrite import redaction
from safewrite.redaction import MAX_CHARS, redact_text

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-DEF_123"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----"
SIGV4 = (
    "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=fe5f80f77d5fa3beca038a248ff027d0445342fe"
)

REDACTED = {
    # headers
    "Authorization: Bearer abc.def": "Authorization: Bearer [redacted]",
    "authorization=Basic dTpw next": "authorization=Basic [redacted] next",
    "Authorization: Basic dXNlcjpwdw==\r\nHost: h": "Authorization: Basic [redacted]\r\nHost: h",
    f"Authorization: {SIGV4}\nHost: h": "Authorization: [redacted]\nHost: h",
    'Authorization: Digest username="u", response="6629"\nHost: h': "Authorization: [redacted]\nHost: h",
    "{'Authorization': 'Bearer abc', 'x': 1}": "{'Authorization': '[redacted]', 'x': 1}",
    "[(b'authorization', b'hunter2')]": "[(b'authorization', b'[redacted]')]",
    "curl -H 'Authorization: hunter2 x' https://h": "curl -H 'Authorization: [redacted]' https://h",
    r"b'GET /\r\nAuthorization: Bearer hunter2\r\n'": r"b'GET /\r\nAuthorization: Bearer [redacted]\r\n'",
    "Set-Cookie: id=hunter2; Path=/\nX: y": "Set-Cookie: [redacted]\nX: y",
    "X-Api-Key: hunter2": "X-Api-Key: [redacted]",
    "[('x-api-key', 'hunter2'), ('a', 'b')]": "[('x-api-key', '[redacted]'), ('a', 'b')]",
    "sent Bearer hunter2.x to h": "sent Bearer [redacted] to h",
    "bearer abcd": "bearer [redacted]",
    r"x\nBearer abcd": r"x\nBearer [redacted]",
    "used Basic dXNlcjpwdw== there": "used Basic [redacted] there",
    "Token 9944b09199c62bcf9418ad846dd0e4bb": "Token [redacted]",
    # tokens that tell what they are
    f"got {JWT}.": "got [redacted]",
    f"x={JWT}&y=1": "x=[redacted]&y=1",
    "bad key sk-abcDEF123": "bad key [redacted]",
    "sk-proj-abc_DEF and sk-ant-api03-x": "[redacted] and [redacted]",
    r"line\nsk-abcdef": r"line\n[redacted]",
    "sk_live_abc rk_test_abc rk_0123456789": "[redacted] [redacted] [redacted]",
    "ghp_X gho_Y ghs_Z github_pat_11A_b": "[redacted] [redacted] [redacted] [redacted]",
    "xoxb-1234-abc xoxp-1-2 xapp-1-A": "[redacted] [redacted] [redacted]",
    "AKIAIOSFODNN7EXAMPLE,ASIAIOSFODNN7EXAMPLE": "[redacted],[redacted]",
    "?key=AIzaSyA-1234567_x&q=1": "?key=[redacted]&q=1",
    "glpat-abc ya29.a0Af_x-y whsec_abc SG.abcdefghij.klmnopqrst": "[redacted] [redacted] [redacted] [redacted]",
    # URLs
    "https://u:pw@h/x": "https://[redacted]@h/x",
    "postgresql+psycopg://app:p@ss@db:5432/x": "postgresql+psycopg://[redacted]@db:5432/x",
    "https://hunter2@h": "https://[redacted]@h",
    "https://h/p?access_token=abc&id=5": "https://h/p?access_token=[redacted]&id=5",
    "?X-Amz-Signature=0123456789&X-Amz-Date=1": "?X-Amz-Signature=[redacted]&X-Amz-Date=1",
    "?X-Amz-Credential=abcdefgh%2F1&x": "?X-Amz-Credential=[redacted]&x",
    "?sv=1&sig=abc%2Bdef12&x=1": "?sv=1&sig=[redacted]&x=1",
    # flags
    "mysql --password hunter2 -h x": "mysql --password [redacted] -h x",
    "tool --token=abc --db-password 'a b' x": "tool --token=[redacted] --db-password '[redacted]' x",
    "['--password', 'hunter2', '-v']": "['--password', '[redacted]', '-v']",
    "curl -u bob:hunter2 https://h": "curl -u bob:[redacted] https://h",
    "curl --user 'bob:hunter2' x": "curl --user 'bob:[redacted]' x",
    # names
    "clientSecret: S3cr3t, next": "clientSecret: [redacted], next",
    "api_key=abc": "api_key=[redacted]",
    "PGPASSWORD=abc MYSQL_PWD=abc x": "PGPASSWORD=[redacted] MYSQL_PWD=[redacted] x",
    "AccountKey=ab+c/d==;EndpointSuffix=x": "AccountKey=[redacted];EndpointSuffix=x",
    "password=a;b&c\\d e": "password=[redacted] e",
    "f(token=abc)": "f(token=[redacted])",
    "aws_secret_access_key = abc": "aws_secret_access_key = [redacted]",
    "token := abc; password => def": "token := [redacted]; password => [redacted]",
    "os.environ['API_KEY'] = 'abc'": "os.environ['API_KEY'] = '[redacted]'",
    "Config(password='it\\'s', user='u')": "Config(password='[redacted]', user='u')",
    "password=b'abc' x": "password=b'[redacted]' x",
    "password='unclosed and lost\nnext": "password='[redacted]\nnext",
    'def f(password: str = "hunter2"):': 'def f(password: str = "[redacted]"):',
    "secret: ['a', 'b'] x": "secret: [redacted] x",
    '"credentials": {"a": "hunter2"}, "b": 1': '"credentials": [redacted], "b": 1',
    "token=('a', 'b') x": "token=[redacted] x",
    "<password>hunter2</password>": "<password>[redacted]</password>",
    "token: Bearer abc123": "token: [redacted] [redacted]",
    # JSON, and JSON in texts in JSON
    '{"a": {"password": "hun\\"ter2", "n": 1}}': '{"a": {"password": "[redacted]", "n": 1}}',
    r'"{\"password\": \"hun ter2\", \"n\": 1}"': r'"{\"password\": \"[redacted]\", \"n\": 1}"',
    r"{\"password\": \"hun\\\"ter2\", \"n\": 1}": r"{\"password\": \"[redacted]\", \"n\": 1}",
    r"\"{\\\"password\\\": \\\"hun\\\\\\\"ter2\\\"}\"": r"\"{\\\"password\\\": \\\"[redacted]\\\"}\"",
    r"{\"token\": \"unclosed": r"{\"token\": \"[redacted]",
    # private keys
    f"before {PEM} after": "before [redacted] after",
    "-----BEGIN PRIVATE KEY-----\\nMIIE\\ncut off": "[redacted]",
    PEM.replace("RSA ", "EC ").replace("KEY", "KEY BLOCK") + ".": "[redacted].",
}


@pytest.mark.parametrize(("text", "redacted"), REDACTED.items())
def test_secrets_leave_and_the_rest_stays(text: str, redacted: str) -> None:
    """By pattern, by name and by place; what stands around a secret can still be read."""
    assert redact_text(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "", "tokenizer=gpt2", "keyboard: us", "monkey=1", "tokens: 5", "max_tokens=100", "secretary: Bob", "password",
        "passworded=1", "the token is missing", "token_count=3", "password_reset: on", "disk-space task-force",
        "password: None", "token=null, next", "f(token: str, n: int)", "secret=true", "api_key: str | None",
        "Bearer token is missing", "Bearer realm", "Basic usage of it", "basic auth", "token expired", "scikit sk-SK",
        "https://example.com/a@b", "mail bob@example.com", "see https://h/p?q=a@b", "PWD=/home/bob", "risk_assessment",
        "key: sw1_pOcn3ppM_tNxqTe0VLfFZJo648ZLnIFlSPacfaBDHJU", "sub_1", "ARIALBOLDITALIC12345", "signature: f(x)",
        "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----", "cookie consent", "authorization denied",
        "ls -u bob", "git --user bob x", "x-ray: ok", "12:30 -- done", "curl --token --verbose", "ey.Jay",
        "[redacted]", "password: [redacted]", "secret: [redacted]; x",
    ],
)  # fmt: skip
def test_ordinary_texts_stay(text: str) -> None:
    """Words that only look like names of secrets, and what is no secret."""
    assert redact_text(text) == text


@pytest.mark.parametrize("text", REDACTED)
def test_redacting_again_changes_nothing(text: str) -> None:
    """A text may pass several doors."""
    once = redact_text(text)
    assert redact_text(once) == once


pieces = st.sampled_from([
    *REDACTED, "password", "token", "=", ": ", '"', "'", "\\", " ", "\n", "&", ";", ",", "x", "Bearer ", "://", "@",
    "--", "[redacted]", "-----BEGIN PRIVATE KEY-----", "eyJ", ".", "{", "}", "(", "]", "a=b", "Authorization: ",
    "-u a:",
])  # fmt: skip


@given(st.lists(pieces, max_size=8).map(" ".join))
def test_mixtures_lose_their_secrets(text: str) -> None:
    """Whatever stands side by side, known secrets are gone."""
    once = redact_text(text)
    assert "ghp_X" not in once.split()
    assert "IBAAK" not in once


@given(st.text(), st.sampled_from(["password=", '"token": ', "--secret ", "api_key: "]), st.text())
def test_named_secrets_are_gone_wherever_they_stand(before: str, name: str, after: str) -> None:
    """Nothing before or after a named secret saves it."""
    assert "hunter2hunter2" not in redact_text(f"{before} {name}hunter2hunter2 {after}")


def test_long_texts_are_cut_at_a_blank() -> None:
    """Only the beginning is kept, never half a secret, and the text says how much is missing."""
    text = "word " * (MAX_CHARS // 5 - 2) + "password " + JWT + " tail" * 10
    cut = redact_text(text)
    assert cut.startswith("word word")
    assert cut.endswith(f"password [{len(JWT) + 50} more characters left out]")
    assert "eyJ" not in cut
    assert redact_text("x" * MAX_CHARS) == "x" * MAX_CHARS
    assert redact_text("x" * (MAX_CHARS + 1)) == f"[{MAX_CHARS + 1} more characters left out]"


def test_a_megabyte_of_malice_is_read_in_time() -> None:
    """A reply made to stall the reader is cut, and read."""
    for piece in ('password="\\ ', "eyJ-eyJ- ", "token=,;& ", "Authorization: Bearer ", "-- -u a:", "://@ "):
        assert "more characters left out" in redact_text(piece * (1_000_000 // len(piece)))


HOSTILE = [
    "a", "-", "://", "://a", "@", "://@", "eyJ", "eyJ-", "eyJaaaa.", "\\", '\\"', '\\\\"', '"', "b'", "token", "token=",
    "token=,", "token=&", "token=a;b=", "token=a&b=", "token=\\", 'token=\\"', 'token="\\', "token={", "token=[",
    "token\\", "--token ", '--token \\"', "Authorization: ", '"Authorization: ', "bearer ", "Basic a", "basic aaaaa",
    "sk-", "sk_a", "SG.aaaaaaaaaa.", "signature=", "&sig=", "<token>", "token>a", "x-", "x-key',", "-----BEGIN ", " ",
    "-----END ", "-----BEGIN PRIVATE KEY-----", "passwd=passwd", "-u a", "[redacted]",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("pattern", redaction._PATTERNS, ids=range(len(redaction._PATTERNS)))
def test_no_pattern_goes_over_a_text_again_and_again(pattern: re.Pattern[str]) -> None:
    """Work grows with the text: a pattern of quadratic cost needs minutes where these need a fraction of a second."""
    for piece in HOSTILE:
        began = time.process_time()
        pattern.sub(redaction._hide, piece * (MAX_CHARS * 2 // len(piece)) + '"@')
        assert time.process_time() - began < 5, piece
