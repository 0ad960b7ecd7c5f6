# from: newcomers, a package named after the folder
# says: write it as allow in package egress
package policies.egress

import rego.v1

allow contains {"rule": "model"} if input.destination.host == "model.shop.test"
