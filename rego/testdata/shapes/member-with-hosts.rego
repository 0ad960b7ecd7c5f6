# from: newcomers, the file's keys in a member
# says: it is none of rule
package egress

allow contains {"rule": "shop", "host": "a.shop.test", "methods": ["GET"]}
