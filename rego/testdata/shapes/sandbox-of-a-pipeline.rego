# from: rules for one sandbox
# says: write it as allow in package egress
package egress.ci

allow contains {"rule": "packages"} if input.destination.host == "packages.shop.test"
