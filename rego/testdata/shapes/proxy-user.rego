# says: write input.sandbox.name
package egress

allow contains {"rule": "ops"} if input.user == "ops"
