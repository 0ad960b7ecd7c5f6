# from: policies that fetch the keys of tokens
# says: give the policy data
package token

import rego.v1

fetch_jwks(url) := http.send({"url": url, "method": "GET", "force_cache": true})

jwks_endpoint := opa.runtime().env.JWKS_ENDPOINT

unverified := io.jwt.decode(input.token)

verified := unverified if io.jwt.verify_rs256(input.token, fetch_jwks(jwks_endpoint).raw_body)

claims := verified[1]
