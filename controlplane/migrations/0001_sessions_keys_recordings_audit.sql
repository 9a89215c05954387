-- One text for SQLite and Postgres. {seq} is a 64-bit integer as the primary key, {bytes} the type of bytes.
-- Times are milliseconds since 1970.

CREATE TABLE sessions (
    id              TEXT    PRIMARY KEY,
    tenant          TEXT    NOT NULL,
    owner           TEXT    NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('opening', 'open', 'closing', 'closed')),
    credential_mode TEXT    NOT NULL,
    domains         TEXT    NOT NULL,
    record          TEXT    NOT NULL,
    labels          TEXT    NOT NULL,
    created_at      BIGINT  NOT NULL,
    started_at      BIGINT,
    deadline_at     BIGINT  NOT NULL,
    idle_ms         BIGINT  NOT NULL,
    used_at         BIGINT  NOT NULL,
    clone_name      TEXT,
    clone_id        TEXT,
    closed_at       BIGINT,
    close_reason    TEXT,
    CHECK ((state = 'closed') = (closed_at IS NOT NULL AND close_reason IS NOT NULL))
);
CREATE INDEX sessions_of_tenant ON sessions (tenant, created_at, id);
CREATE INDEX sessions_unclosed ON sessions (tenant, state) WHERE state <> 'closed';
CREATE INDEX sessions_closed ON sessions (closed_at) WHERE state = 'closed';

CREATE TABLE idempotency (
    tenant          TEXT    NOT NULL,
    owner           TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    request_hash    {bytes} NOT NULL,
    session         TEXT    NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    created_at      BIGINT  NOT NULL,
    PRIMARY KEY (tenant, owner, idempotency_key)
);
CREATE INDEX idempotency_of_session ON idempotency (session);
CREATE INDEX idempotency_by_age ON idempotency (created_at);

CREATE TABLE api_keys (
    id              TEXT    PRIMARY KEY,
    tenant          TEXT    NOT NULL,
    label           TEXT    NOT NULL,
    secret_hash     {bytes} NOT NULL,
    scopes          TEXT    NOT NULL,
    issued_by       TEXT    NOT NULL,
    issued_at       BIGINT  NOT NULL,
    expires_at      BIGINT,
    revoked_at      BIGINT,
    used_at         BIGINT
);
CREATE INDEX api_keys_of_tenant ON api_keys (tenant, issued_at, id);

CREATE TABLE frames (
    session         TEXT    NOT NULL REFERENCES sessions (id),
    tenant          TEXT    NOT NULL,
    number          BIGINT  NOT NULL,
    captured_at     BIGINT  NOT NULL,
    bytes           BIGINT  NOT NULL,
    format          TEXT    NOT NULL,
    width           BIGINT  NOT NULL,
    height          BIGINT  NOT NULL,
    verb            TEXT    NOT NULL,
    PRIMARY KEY (session, number)
);

-- Append-only. `hash` is SHA-256 of `previous` and the row; `previous` is the hash of the row before.
CREATE TABLE audit (
    seq             {seq},
    at              BIGINT  NOT NULL,
    call            TEXT    NOT NULL,
    event           TEXT    NOT NULL CHECK (event IN ('begin', 'end')),
    actor           TEXT    NOT NULL,
    tenant          TEXT    NOT NULL,
    session         TEXT,
    verb            TEXT    NOT NULL,
    params          TEXT,
    outcome         TEXT,
    previous        {bytes} NOT NULL,
    hash            {bytes} NOT NULL
);
CREATE INDEX audit_of_tenant ON audit (tenant, seq);
CREATE INDEX audit_of_session ON audit (session, seq) WHERE session IS NOT NULL;

-- Signed heads of the audit log.
CREATE TABLE audit_checkpoints (
    seq             BIGINT  NOT NULL,
    hash            {bytes} NOT NULL,
    at              BIGINT  NOT NULL,
    public_key      {bytes} NOT NULL,
    signature       {bytes} NOT NULL,
    PRIMARY KEY (public_key, seq)
);

-- Written by the readiness check.
CREATE TABLE probe (
    id              BIGINT  PRIMARY KEY,
    at              BIGINT  NOT NULL
);
