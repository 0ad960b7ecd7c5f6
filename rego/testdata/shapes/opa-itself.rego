# from: OPA's own API authorisation
# says: write: package egress
package system.authz

default allow := false

allow if input.identity in {"first", "second"}

allow if input.path == ["health"]
