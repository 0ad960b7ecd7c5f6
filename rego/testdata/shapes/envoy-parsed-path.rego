# says: that is Envoy's input
package egress

allow contains {"rule": "shop"} if input.parsed_path[0] == "shop"
