# from: newcomers, the program's name as the package
# says: write: package egress
package egressd

import rego.v1

allow contains {"rule": "model"} if input.destination.host == "model.shop.test"
