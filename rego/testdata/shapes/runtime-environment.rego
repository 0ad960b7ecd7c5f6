# from: policies with their settings in the environment
# says: give the policy data
package egress

allow contains {"rule": "env"} if input.destination.host == opa.runtime().env.SHOP_HOST
