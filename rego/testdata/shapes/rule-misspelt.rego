# from: newcomers
# says: nothing reads allowed; write allow
package egress

allowed contains {"rule": "model"} if input.destination.host == "model.shop.test"
