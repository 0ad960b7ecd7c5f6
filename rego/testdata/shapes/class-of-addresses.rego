# from: guards against server-side request forgery, with a class of their own
# lint: no address has this class
package egress

allow contains {"rule": "public"} if input.destination.address_class == "external"
