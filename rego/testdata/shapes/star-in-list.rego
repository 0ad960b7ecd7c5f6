# says: write *.shop.test
package egress

allow contains {"rule": "read"} if host.any(input.destination.host, [".shop.test"])
