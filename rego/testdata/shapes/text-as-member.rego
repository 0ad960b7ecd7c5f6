# from: newcomers, a name where a member belongs
# says: write an object
package egress

allow contains "model" if input.destination.host == "model.shop.test"
