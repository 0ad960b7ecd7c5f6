# from: Trivy, a schema in the annotations
# allow: https://a.shop.test/
# deny: https://b.shop.test/

# METADATA
# schemas:
#   - input: schema["shopfile"]
package egress

allow contains {"rule": "model"} if input.destination.host == "a.shop.test"
