# says: allow is a set of reasons
package egress

default allow := false

allow if input.destination.host == "model.shop.test"
