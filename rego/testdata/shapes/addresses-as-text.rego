# from: newcomers, one address
# says: "TEXT" in LIST
package egress

deny contains {"rule": "one"} if input.destination.addresses == "10.0.0.1"

allow contains {"rule": "all"}
