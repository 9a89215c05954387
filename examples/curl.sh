#!/bin/sh
base=http${CDP_ENDPOINT#ws}
base=${base%/devtools/*} # http://ADDRESS:8080/SECRET
curl -sS "$base/v1/navigate" -H 'Content-Type: application/json' -d "{\"url\": \"$1\"}" | jq -r .title
