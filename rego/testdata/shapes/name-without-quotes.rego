# from: newcomers, a text without quotes
# says: write "model" if it is a text
package egress

allow contains {"rule": model} if input.destination.host == "model.shop.test"
